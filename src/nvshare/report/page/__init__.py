"""Results as pages: one self-contained HTML file with pictures, drawn here as SVG; and two results side by side."""
