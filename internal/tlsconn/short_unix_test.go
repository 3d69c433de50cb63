//go:build unix

package tlsconn_test

import (
	"crypto/aes"
	"crypto/cipher"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gopccl/gopccl/internal/transport"
)

const (
	batch      = 48 << 10 // is sealed at a time
	recordSize = 16 << 10 // plaintext of a full record
)

func median(times []float64) float64 {
	slices.Sort(times)
	return times[len(times)/2]
}

// BenchmarkShort is an all-reduce of 400 KB among two peers in one process, in plain and
// in TLS by turns, that has nothing but connections and additions: no master, and nobody
// to wake but the two ends. It prints the medians, and the processor time of one peer.
func BenchmarkShort(b *testing.B) {
	const rounds = 10 // of a turn
	var rings [2][2]*end
	for i, k := range kinds {
		rings[i] = ring(b, short, k.pair)
		require.NoError(b, round(rings[i]))
	}
	var times [2][]float64
	var cpu [2]float64
	for b.Loop() {
		for i := range rings {
			began, used := time.Now(), processor()
			for range rounds {
				require.NoError(b, round(rings[i]))
			}
			cpu[i] += (processor() - used) / rounds
			times[i] = append(times[i], time.Since(began).Seconds()/rounds)
		}
	}
	b.ReportMetric(0, "ns/op") // it would be that of both
	for i, k := range kinds {
		b.ReportMetric(median(times[i])*1e6, k.name+"-µs")
		b.ReportMetric(cpu[i]/2/float64(b.N)*1e6, k.name+"-cpu-µs")
	}
	b.ReportMetric(median(times[1])/median(times[0]), "tls/plain")
}

// pass sends data from one end to the other in batches, each of which is read before the
// next one is sent, so that nothing waits and nothing is woken.
func pass(b *testing.B, from, to net.Conn) func(data, got []byte) {
	w, r := transport.NonBlocking(from), transport.Source(to)
	return func(data, got []byte) {
		for len(data) > 0 {
			n, err := w.TryWrite(data[:min(batch, len(data))])
			if err == nil {
				_, err = io.ReadFull(r, got[:n])
			}
			if err != nil {
				b.Fatal(err)
			}
			data, got = data[n:], got[n:]
		}
	}
}

// sealing seals and opens as many bytes as data has, record by record, always in the same
// place, and does nothing else.
func sealing(b *testing.B) func(data, got []byte) {
	block, err := aes.NewCipher(make([]byte, 16))
	require.NoError(b, err)
	gcm, err := cipher.NewGCM(block)
	require.NoError(b, err)
	nonce, record := make([]byte, gcm.NonceSize()), make([]byte, recordSize, recordSize+gcm.Overhead())
	return func(data, _ []byte) {
		for left := len(data); left > 0; left -= recordSize {
			sealed := gcm.Seal(record[:0], nonce, record[:min(left, recordSize)], nil)
			if _, err := gcm.Open(record[:0], nonce, sealed, nil); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkParts is what one peer of two sends and receives in an all-reduce of 400 KB, on
// one goroutine, by turns: through sockets, through connections in TLS, and AES-GCM
// without any connection. What TLS takes beyond sockets is what a peer has to compute
// more; if the peers have a processor each, which has no time left in plain, no all-reduce
// gets by with less.
func BenchmarkParts(b *testing.B) {
	data, got := make([]byte, short.bytes), make([]byte, short.bytes)
	var names []string
	var ways []func(data, got []byte)
	for _, k := range kinds {
		from, to := k.pair(b)
		names, ways = append(names, k.name), append(ways, pass(b, from, to))
	}
	names, ways = append(names, "aes"), append(ways, sealing(b))
	times := make([][]float64, len(ways))
	for b.Loop() {
		for i, way := range ways {
			began := time.Now()
			way(data, got)
			times[i] = append(times[i], time.Since(began).Seconds())
		}
	}
	b.ReportMetric(0, "ns/op") // it would be that of all
	for i, name := range names {
		b.ReportMetric(median(times[i])*1e6, name+"-µs")
	}
}
