package pace

import (
	"testing"
	"time"
)

// score runs the ways of the model with a law: the part of the rate that arrives
// once it has settled, and in the first two seconds; how much of the time there is
// a queue above two limits; and what changes of the rate cost.
func score(b *testing.B, l law) {
	var part, early, long, changed float64
	for _, c := range ways {
		f := c.fluid(1)
		f.up.law = l
		early += f.run(2*time.Second).part / float64(len(ways))
		o := f.run(8 * time.Second)
		part += o.part / float64(len(ways))
		long += o.long / float64(len(ways))
		f.rate /= 3
		f.run(3 * time.Second)
		f.rate *= 3
		changed += f.run(3*time.Second).part / float64(len(ways))
	}
	b.ReportMetric(100*part, "%settled")
	b.ReportMetric(100*early, "%first2s")
	b.ReportMetric(100*long, "%queued")
	b.ReportMetric(100*changed, "%changed")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkConstants prints what other constants than those of theLaw do:
//
//	go test ./internal/pace -run '^$' -bench Constants -benchtime 1x
func BenchmarkConstants(b *testing.B) {
	for _, v := range []struct {
		name string
		with func(*law)
	}{
		{"chosen", func(*law) {}},
		{"standing=0.5", func(l *law) { l.standing = 0.5 }},
		{"fade=0.02", func(l *law) { l.fade = 0.02 }},
		{"first=0.90", func(l *law) { l.first = 0.90 }},
		{"cut=0.92", func(l *law) { l.cut = 0.92 }},
		{"cut=0.98", func(l *law) { l.cut = 0.98 }},
		{"floor=0.50", func(l *law) { l.floor = 0.5 }},
		{"floor=0.90", func(l *law) { l.floor = 0.9 }},
		{"enough=0.25", func(l *law) { l.enough = 0.25 }},
		{"enough=1", func(l *law) { l.enough = 1 }},
		{"slow=1.005", func(l *law) { l.slow = 1.005 }},
		{"slow=1.04", func(l *law) { l.slow = 1.04 }},
		{"hold=0.10", func(l *law) { l.hold = 0.1 }},
		{"open=1.04", func(l *law) { l.open = 1.04 }},
		{"leap=1.5", func(l *law) { l.leap = 1.5 }},
		{"limit/2", func(l *law) { l.limitPart, l.limitMin, l.limitMax = l.limitPart/2, l.limitMin/2, l.limitMax/2 }},
		{"limit*2", func(l *law) { l.limitPart, l.limitMin, l.limitMax = l.limitPart*2, l.limitMin*2, l.limitMax*2 }},
		{"interval=50ms", func(l *law) { l.interval /= 2 }},
		{"interval=200ms", func(l *law) { l.interval *= 2 }},
		{"no draining", func(l *law) { l.drain = 1e9 }},
		{"drain=1", func(l *law) { l.drain = 1 }},
		{"drainPart=0.6", func(l *law) { l.drainPart = 0.6 }},
	} {
		b.Run(v.name, func(b *testing.B) {
			for range b.N {
				l := theLaw
				v.with(&l)
				score(b, l)
			}
		})
	}
}
