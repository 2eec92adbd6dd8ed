"""What a quantized model loses, and how to get it back: equalize, correct, find and raise what loses accuracy."""
