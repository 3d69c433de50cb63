package determinism

// sameNaNs: the kernels of a device make the NaNs that this processor makes.
const sameNaNs = true
