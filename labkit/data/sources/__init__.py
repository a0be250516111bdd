"""Building blocks of the data scripts: downloads, archives, folders of classes."""
