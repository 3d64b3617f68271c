"""Results as pages: one self-contained HTML file with SVG pictures; and two results side by side."""
