"""What an update stage is to a step: the part that makes weights of averaged gradients."""

from mindspore import nn


class UpdateStage(nn.Cell):
    """Base of the update stages: ``construct(gradients)`` updates and returns a value.

    A stage may want more than gradients at some of the updates. It then names ``extras``, pairs of
    tuples of Parameters as ``GradientStage`` takes them. Where ``wants_extras`` says so, the step
    gathers them beside the gradients, in a compiled graph of its own, and calls

    - ``before(step, batch)`` before that graph runs, and is compiled;
    - ``hold(gradients, extras)`` in that graph, once the update's gradients are complete;
    - ``refresh(step, batch)`` between graphs, if ``held`` then says that something is held;
    - ``apply_held(*notes)`` in a third graph, with the Tensors that ``refresh`` has returned: the
      update, from what is held;
    - ``applied(step, batch)`` after it. ``batch`` is (), where an epoch's end closes a group.

    The compiled graph of all other updates holds nothing of this.
    """

    extras = None
    # settings: plain values that a resumed training must share with the interrupted one.
    settings = {}

    def attach(self, step) -> None:
        """Refuse a step that the stage cannot work with; called when the step is built."""

    def check_length(self, updates: int) -> None:
        """Raise ``InputError`` where a schedule of the stage ends before ``updates`` are made."""

    def wants_extras(self, updates: int) -> bool:
        """Return whether the update after ``updates`` many needs the extras."""
        return False

    def before(self, step, batch) -> None:
        """Refuse a micro-batch that the extras are about to be gathered of."""

    def after(self, step, loss, batch) -> None:
        """Look at a micro-batch's loss, after each call of a step whose stage has extras."""
