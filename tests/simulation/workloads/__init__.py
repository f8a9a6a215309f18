"""What clients and users of ledgers do in a run. They write down what they learned in a history of `checkers`."""
