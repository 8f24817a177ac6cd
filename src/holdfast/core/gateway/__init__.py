"""What the gateway decides: who may ask how much, which replica answers, and which keys are nobody's."""
