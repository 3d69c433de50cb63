//go:build race

package digest

// slow says that code runs many times slower than in the product.
const slow = true
