"""What the data scripts need: downloads, archives, folders of classes."""
