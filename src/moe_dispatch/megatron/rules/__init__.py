"""The lint rules: texts in one YAML and checks in one module for each theme."""
