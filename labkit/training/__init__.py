"""``fit`` over ``mindspore.train.Model``, its records, checkpoints and evaluation."""
