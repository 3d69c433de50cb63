package errs

import "slices"

// maxLater bounds the errors that a Chain keeps beside the first.
const maxLater = 4

// Chain is the first error of something that several errors met, with those
// that came later. Is and As look at the first alone: it is the cause.
type Chain struct {
	First error
	Later []error // in the order in which they came, at most four
}

// Then returns first with later appended. first may be nil, a *Chain, which is
// not changed, or any other error; nil in later is left out, and so is an error
// that says what the one before it said.
func Then(first error, later ...error) error {
	c := &Chain{First: first}
	if known, ok := first.(*Chain); ok {
		c.First, c.Later = known.First, slices.Clone(known.Later)
	}
	for _, err := range later {
		switch {
		case err == nil || len(c.Later) == maxLater:
		case c.First == nil:
			c.First = err
		case err.Error() != c.last().Error():
			c.Later = append(c.Later, err)
		}
	}
	if len(c.Later) == 0 {
		return c.First
	}
	return c
}

func (c *Chain) last() error {
	if n := len(c.Later); n > 0 {
		return c.Later[n-1]
	}
	return c.First
}

// Error names the first error, then the others.
func (c *Chain) Error() string {
	text := c.First.Error()
	for _, err := range c.Later {
		text += "; then: " + err.Error()
	}
	return text
}

// Unwrap returns the first error.
func (c *Chain) Unwrap() error { return c.First }
