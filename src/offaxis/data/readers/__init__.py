"""The publishers' own file formats -> images, a format a file.

Each reader takes the files that a layout found and gives a :class:`~offaxis.data.image_set.TensorSet` (images in
memory) or :class:`~offaxis.data.folder.Files` (images still in their files). A file that is not what it should be is
named in a DataError; nothing in a file is ever executed.
"""
