"""Colour photographs of other things: street numbers, food, textures, traffic signs, scenes."""

from offaxis.data.catalogue.entry import Download, Entry, Layout
from offaxis.data.image_lists import read_food101, read_gtsrb_test, read_gtsrb_training, read_images
from offaxis.data.mat_files import read_svhn

_RESIZED = "Its images vary in size and are resized to 32x32 unless another size is asked for."

SVHN = Entry(
    name="svhn",
    title="SVHN",
    publisher="Yuval Netzer et al., Stanford University and Google",
    licence="non-commercial use only",
    citation="Netzer et al. Reading digits in natural images with unsupervised feature learning. NIPS workshop, 2011.",
    kind="street numbers",
    counts={"train": 73_257, "test": 26_032},
    native="32x32 RGB",
    shape=(3, 32, 32),
    homepage="http://ufldl.stanford.edu/housenumbers/",
    layouts=(
        Layout(
            ("svhn", "", "SVHN", "housenumbers"),
            {"train": ("train_32x32.mat",), "test": ("test_32x32.mat",)},
            read_svhn,
        ),
    ),
    downloads=tuple(
        Download(f"svhn/{file}", (f"http://ufldl.stanford.edu/housenumbers/{file}",), checksum)
        for file, checksum in (
            ("train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
            ("test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"),
        )
    ),
)

FOOD101 = Entry(
    name="food101",
    title="Food-101",
    publisher="Lukas Bossard, Matthieu Guillaumin, Luc Van Gool, ETH Zurich",
    licence="images belong to their authors (Foodspotting); research use",
    citation="Bossard, Guillaumin, Van Gool. Food-101: mining discriminative components. ECCV 2014.",
    kind="food",
    counts={"train": 75_750, "test": 25_250},
    native="to 512 RGB",
    shape=(3, 32, 32),
    homepage="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
    layouts=(
        Layout(
            ("food-101", "food101/food-101", "food101"),
            {"train": ("meta/train.txt", "images"), "test": ("meta/test.txt", "images")},
            read_food101,
        ),
    ),
    downloads=(
        Download(
            "food-101.tar.gz",
            ("http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz",),
            "md5:85eeb15f3717b99a5da872d97d918f87",
            unpack="",
        ),
    ),
    notes=(_RESIZED,),
)

DTD = Entry(
    name="dtd",
    title="Textures (DTD)",
    publisher="Mircea Cimpoi et al., University of Oxford",
    licence="research purposes",
    citation="Cimpoi et al. Describing textures in the wild. CVPR 2014.",
    kind="textures",
    counts={"test": 5_640},
    native="300-640 RGB",
    shape=(3, 32, 32),
    homepage="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
    layouts=(Layout(("dtd/images", "dtd/dtd/images"), {"test": (".",)}, read_images),),
    downloads=(
        Download(
            "dtd-r1.0.1.tar.gz",
            ("https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",),
            "md5:fff73e5086ae6bdbea199a49dfb8a4c1",
            unpack="",
        ),
    ),
    notes=("All 5,640 images, whatever part of the publisher's splits they are in.", _RESIZED),
)

_ERDA = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370"

GTSRB = Entry(
    name="gtsrb",
    title="GTSRB",
    publisher="Johannes Stallkamp et al., Ruhr-Universität Bochum",
    licence="none stated, asks to be cited",
    citation="Stallkamp et al. The German traffic sign recognition benchmark. IJCNN 2011.",
    kind="signs",
    counts={"train": 26_640, "test": 12_630},
    native="15-250 RGB",
    shape=(3, 32, 32),
    homepage="https://benchmark.ini.rub.de/",
    layouts=(
        Layout(
            ("", "gtsrb"),
            {
                "train": ("GTSRB/Training|GTSRB/Final_Training/Images",),
                "test": ("GTSRB/Final_Test/Images", "GT-final_test.csv|GTSRB/GT-final_test.csv"),
            },
            lambda paths: read_gtsrb_training(paths) if len(paths) == 1 else read_gtsrb_test(paths),
        ),
    ),
    downloads=tuple(
        Download(f"gtsrb/{file}", (f"{_ERDA}/{file}",), checksum, unpack="gtsrb")
        for file, checksum in (
            ("GTSRB-Training_fixed.zip", "md5:513f3c79a4c5141765e10e952eaa2478"),
            ("GTSRB_Final_Test_Images.zip", "md5:c7e4e6327067d32654124b0fe9e82185"),
            ("GTSRB_Final_Test_GT.zip", "md5:fe31e9c9270bbcd7b84b7f21a9d9d9e5"),
        )
    ),
    notes=(_RESIZED,),
)

SCENES = Entry(
    name="scenes",
    title="Intel scenes",
    publisher="Intel, as 'Intel Image Classification' on Kaggle",
    licence="none stated",
    citation="Intel Image Classification. Kaggle, 2018.",
    kind="scenes",
    counts={"train": 14_034, "test": 3_000},
    native="150x150 RGB",
    shape=(3, 32, 32),
    homepage="https://www.kaggle.com/datasets/puneet6060/intel-image-classification",
    layouts=(
        Layout(("scenes/seg_test/seg_test", "seg_test/seg_test", "seg_test"), {"test": (".",)}, read_images),
        Layout(("scenes/seg_train/seg_train", "seg_train/seg_train", "seg_train"), {"train": (".",)}, read_images),
        # the test classes alone; named, so that a folder seg_train is never taken for them
        Layout(("scenes",), {"test": ("buildings", "street")}, lambda paths: read_images([paths[0].parent])),
    ),
    downloads=(Download("scenes.zip", (), None, unpack="scenes"),),
    notes=(
        "Six kinds of landscape and street. Stands in for LSUN or Places where those are not to be had; it is neither.",
        _RESIZED,
    ),
)
