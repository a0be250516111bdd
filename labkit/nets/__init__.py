"""Networks, and the initial weights of their Parameters."""
