package sockets

import "bytes"

// First is what a connection begins with, at a port that serves several purposes.
type First uint8

// What a connection may begin with.
const (
	// Short: too few bytes to tell.
	Short First = iota
	// TLS is a handshake record of TLS.
	TLS
	// Preface is the plaintext preface of a gopccl endpoint, PrefaceSize bytes.
	Preface
	// PCCL is a packet of PCCL, or of a gopccl endpoint without a preface: the first
	// byte of its length is zero.
	PCCL
	// Stranger is anything else.
	Stranger
)

const (
	prefaceText = "gopcclP1"
	// PrefaceSize is the size of a preface: its text, and the purpose.
	PrefaceSize = len(prefaceText) + 1
	// Purposes that a preface names are 1 (data), 2 (state) and 3 (benchmark).
	lastPurpose = 3
)

// Classify tells what the first bytes of a connection are, and the purpose that a
// preface names. Short says that more are needed; PrefaceSize bytes always are
// enough. No port asks it yet.
func Classify(b []byte) (what First, purpose byte) {
	switch {
	case len(b) == 0:
		return Short, 0
	case b[0] == 0:
		return PCCL, 0
	case begins(b, "\x16\x03"):
		switch {
		case len(b) < 3:
			return Short, 0
		case b[2] >= 1 && b[2] <= 3:
			return TLS, 0
		}
	case begins(b, prefaceText):
		switch {
		case len(b) < PrefaceSize:
			return Short, 0
		case b[PrefaceSize-1] >= 1 && b[PrefaceSize-1] <= lastPurpose:
			return Preface, b[PrefaceSize-1]
		}
	}
	return Stranger, 0
}

// begins reports whether b and text agree as far as both go.
func begins(b []byte, text string) bool {
	n := min(len(b), len(text))
	return bytes.Equal(b[:n], []byte(text[:n]))
}
