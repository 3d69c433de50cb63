//go:build race

package digesttest

// slow says that code runs many times slower than in the product.
const slow = true
