//go:build (!amd64 && !arm64) || noasm

package digest

// There are no vectors to go by.
const (
	byVector    = false
	vectorName  = ""
	vectorNeeds = ""
)

func mixRowsByVector(*[threads]uint32, []byte) int { return 0 }
