package sockets_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/sockets"
)

func TestFirstBytes(t *testing.T) {
	for text, want := range map[string]sockets.First{
		"": sockets.Short, "\x00": sockets.PCCL, "\x00\x00\x00\x00": sockets.PCCL,
		"\x16": sockets.Short, "\x16\x03": sockets.Short, "\x16\x03\x01": sockets.TLS, "\x16\x03\x03\x00": sockets.TLS,
		"\x16\x03\x04": sockets.Stranger, "\x16\x02\x01": sockets.Stranger,
		"g": sockets.Short, "gopcclP1": sockets.Short, "gopcclP1\x01": sockets.Preface, "gopcclP1\x03more": sockets.Preface,
		"gopcclP1\x00": sockets.Stranger, "gopcclP1\x04": sockets.Stranger, "gopcclP2\x01": sockets.Stranger, "go away": sockets.Stranger,
		"GET / HTTP/1.1": sockets.Stranger, "SSH-2.0": sockets.Stranger, "\xff": sockets.Stranger,
	} {
		got, purpose := sockets.Classify([]byte(text))
		require.Equal(t, want, got, "%q", text)
		require.Equal(t, got == sockets.Preface, purpose != 0, "%q", text)
	}
	_, purpose := sockets.Classify([]byte("gopcclP1\x02"))
	require.EqualValues(t, 2, purpose)
}

// More bytes never change what fewer have told, and PrefaceSize of them always tell.
func FuzzFirstBytes(f *testing.F) {
	for _, s := range []string{"\x00\x00\x00\x00\x00\x00\x00\x20\x00\x01", "\x16\x03\x01\x02\x00", "gopcclP1\x02", "GET / HTTP/1.1\r\n", "SSH-2.0-x\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		told := sockets.Short
		for n := range len(b) + 1 {
			what, purpose := sockets.Classify(b[:n])
			require.Equal(t, what == sockets.Preface, purpose != 0)
			if told != sockets.Short {
				require.Equal(t, told, what)
			}
			require.False(t, what == sockets.Short && n >= sockets.PrefaceSize)
			told = what
		}
	})
}
