package main

import (
	"errors"

	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/quorum/node"
)

// masters is this one's part among several; nil: it is alone.
type masters struct{ *node.Node }

// joinMasters connects with the other masters that c names, and has opt ask them who
// leads.
func joinMasters(c *conf.Config, opt *core.MasterOptions) (*masters, error) {
	all, self := c.Masters()
	if all == nil {
		return nil, nil
	}
	if opt.State == "" {
		return nil, errs.New(errs.InvalidConfig, "run master", errors.New("a master among several needs a directory of its own: its votes must outlive it")).
			WithHint("--state DIR, or master.state")
	}
	if self == "none" {
		return nil, errs.New(errs.InvalidConfig, "run master", errors.New("which of the masters is this one?")).
			WithHint("--self HOST:PORT, or master.self")
	}
	n, err := node.New(node.Options{
		Masters: all, Self: self, Dir: opt.State, Security: guard.Options(opt.Security), Logger: opt.Logger,
	})
	if err != nil {
		return nil, err
	}
	opt.State, opt.Authority = "", n
	return &masters{n}, nil
}

func (m *masters) close() {
	if m != nil {
		m.Close()
	}
}
