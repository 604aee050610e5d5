"""The five sets that came with ODIN, and the two without their black frame."""

from dataclasses import replace

from offaxis.data.catalogue.entry import Download, Entry, Layout
from offaxis.data.image_lists import read_images

_IMAGENET = "ImageNet terms: non-commercial research and education"
_FRAMED = (
    "Every image is 36x36 with a black frame two pixels wide, which makes it easy to tell apart; it enters the network "
    "at that size where the network is trained on 32x32. See the set without the frame."
)
_UNFRAMED = "The same files without their two-pixel black frame: pixels [2:34, 2:34]."
_REPOSITORY = "https://github.com/facebookresearch/odin"
_ODIN = "Liang, Li, Srikant. Enhancing the reliability of out-of-distribution image detection. ICLR 2018"
_TIN = f"Deng et al. ImageNet. CVPR 2009; as prepared for {_ODIN}."
_LSUN = f"Yu et al. LSUN. arXiv:1506.03365, 2015; as prepared for {_ODIN}."


def _archive(file: str, dropbox: str, checksum: str) -> tuple[Download, ...]:
    return (Download(file, (f"https://www.dropbox.com/s/{dropbox}/{file}?dl=1",), checksum, unpack=""),)


def _images(*folders: str) -> tuple[Layout, ...]:
    return (Layout(folders, {"test": (".",)}, read_images),)


TIN_CROP = Entry(
    name="tin-crop",
    title="TIN (c)",
    publisher="TinyImageNet's test images, cropped by the authors of ODIN",
    licence=_IMAGENET,
    citation=_TIN,
    kind="objects",
    counts={"test": 10_000},
    native="36x36 RGB",
    shape=(3, 36, 36),
    homepage=_REPOSITORY,
    native_size=(36, 36),
    layouts=_images("Imagenet/test", "tin-crop/Imagenet/test", "tin-crop"),
    downloads=_archive("Imagenet.tar.gz", "avgm2u562itwpkl", "md5:7c0827e4246c3718a5ee076e999e52e5"),
    framed=True,
    notes=(_FRAMED,),
)
TIN_CROP_FREE = replace(
    TIN_CROP,
    name="tin-crop-free",
    title="TIN (c)*",
    native="32x32 RGB",
    shape=(3, 32, 32),
    trim=2,
    framed=False,
    notes=(_UNFRAMED,),
)
TIN_RESIZE = replace(
    TIN_CROP,
    name="tin-resize",
    title="TIN (r)",
    publisher="TinyImageNet's test images, resized by the authors of ODIN",
    native="32x32 RGB",
    shape=(3, 32, 32),
    native_size=(32, 32),
    layouts=_images("Imagenet_resize/Imagenet_resize", "Imagenet_resize", "tin-resize"),
    downloads=_archive("Imagenet_resize.tar.gz", "kp3my3412u5k9rl", "md5:0f9ff11d45babf2eff5fe12281d1ac31"),
    framed=False,
    notes=("Resized images are smoother than native ones: a detector may be reading the interpolation.",),
)
LSUN_CROP = replace(
    TIN_CROP,
    name="lsun-crop",
    title="LSUN (c)",
    publisher="LSUN's test scenes, cropped by the authors of ODIN",
    licence="none stated",
    citation=_LSUN,
    kind="scenes",
    layouts=_images("LSUN/test", "lsun-crop/LSUN/test", "lsun-crop"),
    downloads=_archive("LSUN.tar.gz", "fhtsw1m3qxlwj6h", "md5:458a0a0ab8e5f1cb4516d7400568e460"),
)
LSUN_CROP_FREE = replace(
    LSUN_CROP,
    name="lsun-crop-free",
    title="LSUN (c)*",
    native="32x32 RGB",
    shape=(3, 32, 32),
    trim=2,
    framed=False,
    notes=(_UNFRAMED,),
)
LSUN_RESIZE = replace(
    TIN_RESIZE,
    name="lsun-resize",
    title="LSUN (r)",
    publisher="LSUN's test scenes, resized by the authors of ODIN",
    licence="none stated",
    citation=_LSUN,
    kind="scenes",
    layouts=_images("LSUN_resize/LSUN_resize", "LSUN_resize", "lsun-resize"),
    downloads=_archive("LSUN_resize.tar.gz", "moqh2wh8696c3yl", "md5:278b7b31c8cb7e804a1465a8ce03a2dc"),
)
ISUN = replace(
    TIN_RESIZE,
    name="isun",
    title="iSUN",
    publisher="scenes of iSUN, resized by the authors of ODIN",
    licence="none stated",
    citation=f"Xu et al. TurkerGaze. arXiv:1504.06755, 2015; as prepared for {_ODIN}.",
    kind="scenes",
    counts={"test": 8_925},
    layouts=_images("iSUN/iSUN_patches", "iSUN", "isun"),
    downloads=_archive("iSUN.tar.gz", "ssz7qxfqae0cca5", "md5:be77b0f2c26fda898afac5f99645ee70"),
)
