package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/gopccl/gopccl/conf"
	"github.com/gopccl/gopccl/core"
	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/guard"
	"github.com/gopccl/gopccl/internal/lead/etcd"
	"github.com/gopccl/gopccl/internal/quorum/node"
)

// joinMasters has opt ask who leads, if c names other masters or an etcd cluster. leave
// gives the lead up.
func joinMasters(c *conf.Config, opt *core.MasterOptions) (leave func(), err error) {
	bad := func(text, hint string) (func(), error) {
		return nil, errs.New(errs.InvalidConfig, "run master", errors.New(text)).WithHint(hint)
	}
	all, self := c.Masters()
	urls := c.EtcdURLs()
	switch {
	case urls != "" && (all != nil || opt.State != ""):
		return bad("etcd keeps what other masters, or a directory, would keep", "--etcd alone, or --peers with --state")
	case urls != "":
		o := etcd.Options{}
		o.Password, o.CA, o.Cert, o.Key = c.EtcdFiles()
		if self := c.EtcdSelf(); self != "" {
			at, err := net.ResolveTCPAddr("tcp", self)
			if err != nil || at.Port == 0 || at.IP.IsUnspecified() || at.IP == nil {
				return bad(fmt.Sprintf("peers find no master at %q", self), "--self HOST:PORT, the address at which they reach this one")
			}
			o.Serves = at.AddrPort()
			o.Serves = netip.AddrPortFrom(o.Serves.Addr().Unmap(), o.Serves.Port())
		}
		a, err := etcd.New(urls, o)
		if err != nil {
			return nil, err
		}
		opt.Authority = a
		return func() { _ = a.Resign() }, nil
	case all == nil:
		return func() {}, nil
	case opt.State == "":
		return bad("a master among several needs a directory of its own: its votes must outlive it", "--state DIR, or master.state")
	case self == "none":
		return bad("which of the masters is this one?", "--self HOST:PORT, or master.self")
	}
	_, listens, _ := net.SplitHostPort(opt.Listen)
	port, _ := strconv.ParseUint(listens, 10, 16) // 0, or a name: the others do not know it
	n, err := node.New(node.Options{
		Serves: uint16(port), Masters: all, Self: self, Former: c.FormerMasters(), Dir: opt.State, Security: guard.Options(opt.Security), Logger: opt.Logger,
	})
	if err != nil {
		return nil, err
	}
	opt.State, opt.Authority = "", n
	return func() { n.Close() }, nil
}
