"""What Gaussian processes are made of: kernels, and likelihoods of one latent value."""
