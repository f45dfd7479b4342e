"""What a number is: elements, scales, the formats they make, and the rules that round to them."""
