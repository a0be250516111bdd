"""The notebooks' interface: presets, run folders, measurements, figures, exercises, results."""
