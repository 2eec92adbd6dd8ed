"""What the quantizer is made of: which node gets which config, where observers sit, and what they make of what they see."""
