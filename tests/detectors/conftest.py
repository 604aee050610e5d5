"""The toy data set of ``toy.py`` and its networks, as fixtures."""

import copy

import pytest

from tests.detectors.toy import NetworkOf, Toy, noise, single, stripes, trained


@pytest.fixture(scope="session")
@single()
def toy() -> Toy:
    images, labels = stripes(400, 1)
    test, test_labels = stripes(60, 2)
    batches = list(zip(images.split(100), labels.split(100), strict=True))
    return Toy(train=batches, images=test, labels=test_labels, ood_images=noise(60, 3))


@pytest.fixture
def network_of() -> NetworkOf:
    """Kind of network -> a trained network of one's own (a copy)."""
    return lambda kind: copy.deepcopy(trained(kind))
