package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gopccl/gopccl/tests/internal/lab"
	"github.com/gopccl/gopccl/tests/internal/lab/netem"
)

// becoming says that the network becomes that of another profile before a round.
type becoming struct {
	profile *lab.Profile
	round   int
}

// becomings reads PROFILE@ROUND, comma separated.
func becomings(text string) (list []becoming, err error) {
	for word := range strings.SplitSeq(text, ",") {
		if word == "" {
			continue
		}
		name, number, _ := strings.Cut(word, "@")
		round, err := strconv.Atoi(number)
		if err != nil || round < 1 {
			return nil, fmt.Errorf("-become %s: there is no round behind an @", word)
		}
		p, err := lab.Load(name)
		if err != nil {
			return nil, err
		}
		list = append(list, becoming{p, round})
	}
	return list, nil
}

// become changes rates, delays and losses before a round, if they are to become others. Hosts and
// sites stay.
func (g game) become(l *lab.Lab, round int) error {
	for _, b := range g.becomings {
		if b.round != round {
			continue
		}
		if n := len(l.Hosts); len(b.profile.Hosts) != n {
			return fmt.Errorf("a network of %d hosts cannot become %s, of %d", n, b.profile.Name, len(b.profile.Hosts))
		}
		l.Change(func(n *netem.Net) {
			for i, h := range b.profile.Hosts {
				n.ChangeHost(i, func(is *netem.Host) { *is = h })
				for k, path := range b.profile.Paths[i] {
					n.Change(i, k, func(is *netem.Path) { *is = path })
				}
			}
		})
	}
	return nil
}
