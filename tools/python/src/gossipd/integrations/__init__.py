"""Callbacks for libraries that own the training loop; each module needs its library."""
