"""Charts and pages as text: inline SVG, no scripts, nothing from elsewhere."""
