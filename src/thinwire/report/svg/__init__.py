"""Charts and pages as text: inline SVG, one small script that no chart needs, nothing from elsewhere."""
