"""`gateway policy`: what was learned as a file that is compared, published and rolled back."""
