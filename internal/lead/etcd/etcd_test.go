package etcd

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gopccl/gopccl/core/errs"
	"github.com/gopccl/gopccl/internal/lead"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// far bounds what has to happen some time.
const far = 30 * time.Second

// clusters are what an authority is tested on: the fake, and etcd itself where it is
// installed.
func clusters(t *testing.T) map[string]string {
	all := map[string]string{"fake": newFake(t).URL}
	if url := startEtcd(t); url != "" {
		all["etcd"] = url
	}
	return all
}

// startEtcd runs etcd itself, "" where it is not installed.
func startEtcd(t *testing.T) string {
	program, err := exec.LookPath("etcd")
	if err != nil {
		require.NotEqual(t, "true", os.Getenv("CI"), "etcd is not installed: tools/ci/install.sh does that")
		t.Log("etcd is not installed (Debian: etcd-server): the fake alone is tested")
		return ""
	}
	var ports [2]string
	var held [2]net.Listener // so that they are two
	for i := range ports {
		held[i], err = net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		ports[i] = "http://" + held[i].Addr().String()
	}
	for _, ln := range held {
		ln.Close()
	}
	cmd := exec.Command(program, "--data-dir", t.TempDir(), "--listen-client-urls", ports[0], "--advertise-client-urls", ports[0],
		"--listen-peer-urls", ports[1], "--initial-advertise-peer-urls", ports[1], "--initial-cluster", "default="+ports[1])
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	end := time.Now().Add(far)
	for {
		a := open(t, ports[0]+"/probe")
		if _, err := a.txn(context.Background(), txn{Success: []op{get([]byte("x"))}}); err == nil {
			break
		}
		require.True(t, time.Now().Before(end), "etcd does not answer")
		time.Sleep(50 * time.Millisecond) // it says nowhere that it is ready
	}
	return ports[0]
}

func open(t *testing.T, url string) *Authority { return openAs(t, url, Options{}) }

func openAs(t *testing.T, url string, o Options) *Authority {
	t.Helper()
	a, err := New(url, o)
	require.NoError(t, err)
	t.Cleanup(func() { a.Resign() })
	return a
}

func take(t *testing.T, a *Authority) (term uint32, kept string, lost <-chan error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), far)
	defer cancel()
	term, b, lost, err := a.Lead(ctx)
	require.NoError(t, err)
	return term, string(b), lost
}

// Masters lead one after the other: one at a time, with higher terms, and each finds what
// the last one has committed.
func TestOneAfterTheOther(t *testing.T) {
	var _ lead.Authority = (*Authority)(nil)
	for name, url := range clusters(t) {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			a, b := open(t, url+"/run"), open(t, url+"/run")
			term, kept, _ := take(t, a)
			require.EqualValues(t, 1, term)
			require.Empty(t, kept)
			require.NoError(t, a.Confirm(ctx))
			require.NoError(t, a.Commit(ctx, []byte("first\x00\xff")))
			require.NoError(t, a.Commit(ctx, []byte("second")))
			require.Equal(t, errs.NotLeading, errs.CodeOf(b.Confirm(ctx)))
			short, cancel := context.WithTimeout(ctx, 2*look)
			defer cancel()
			_, _, _, err := b.Lead(short)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Contains(t, a.Describe()[0], "leads, term 1")
			require.NoError(t, a.Resign())
			require.Equal(t, errs.NotLeading, errs.CodeOf(a.Commit(ctx, []byte("late"))))
			require.Equal(t, "etcd: nobody leads", b.Describe()[0])

			term, kept, lost := take(t, b)
			require.EqualValues(t, 2, term)
			require.Equal(t, "second", kept)
			// Its lease is gone, and another one leads: it changes nothing any more.
			b.revoke(b.reign.lease)
			term, kept, _ = take(t, a)
			require.EqualValues(t, 3, term)
			require.Equal(t, "second", kept)
			require.NoError(t, a.Commit(ctx, []byte("third")))
			require.Equal(t, errs.NotLeading, errs.CodeOf(b.Commit(ctx, []byte("stale"))))
			require.Equal(t, errs.NotLeading, errs.CodeOf(b.Confirm(ctx)))
			require.Equal(t, errs.NotLeading, errs.CodeOf(<-lost))
			require.NoError(t, a.Resign())
			c := open(t, url+"/run")
			term, kept, _ = take(t, c)
			require.EqualValues(t, 4, term)
			require.Equal(t, "third", kept)
			other := open(t, url+"/other") // runs do not meet
			term, kept, _ = take(t, other)
			require.EqualValues(t, 1, term)
			require.Empty(t, kept)
		})
	}
}

// A lease is kept for as long as etcd answers, and a lead that cannot be is over in time.
func TestLeaseEnds(t *testing.T) {
	f := newFake(t)
	a := open(t, f.URL)
	a.ttl = time.Second
	_, _, lost := take(t, a)
	for range 3 * 6 / 2 { // six in the time of a lease: more than that
		<-f.renewed
	}
	require.Empty(t, lost)
	require.NoError(t, a.Confirm(context.Background()))
	f.set(func() { f.down = true })
	require.ErrorContains(t, <-lost, "etcd has not answered for too long")
	require.Equal(t, errs.NotLeading, errs.CodeOf(a.Confirm(context.Background())))
	_, _, _, err := open(t, f.URL).Lead(context.Background())
	require.Equal(t, errs.InvalidUsage, errs.CodeOf(err), "it may be no etcd at all")
	back := time.AfterFunc(look, func() { f.set(func() { f.down = false }) })
	defer back.Stop()
	term, _, _ := take(t, a) // it knows that this is one
	require.EqualValues(t, 2, term)
}

// A member of etcd that is behind confirms nothing by itself.
func TestMemberIsBehind(t *testing.T) {
	f := newFake(t)
	a, b := open(t, f.URL), open(t, f.URL)
	take(t, a)
	a.revoke(a.reign.lease)
	take(t, b)
	f.set(func() { f.behind = true })
	require.Equal(t, errs.NotLeading, errs.CodeOf(a.Confirm(context.Background())))
	require.NoError(t, b.Confirm(context.Background()))
}

// A master that does not hear that it has the lead does not lead, and the next one has a
// term of its own.
func TestLostAnswers(t *testing.T) {
	f := newFake(t)
	a := open(t, f.URL)
	for range 3 {
		f.set(func() { f.lossy = true }) // of the question who leads
		r, _, _, err := a.try(context.Background())
		require.Error(t, err)
		require.Nil(t, r)
	}
	first, _, _ := take(t, a)
	require.NoError(t, a.Commit(context.Background(), []byte("kept")))
	f.set(func() { f.lossy = true })
	require.NoError(t, a.Commit(context.Background(), []byte("again")), "it is asked again")
	require.NoError(t, a.Resign())
	term, kept, _ := take(t, a)
	require.Equal(t, first+1, term)
	require.Equal(t, "again", kept)
}

// One of several that does not answer is passed over.
func TestSeveralEndpoints(t *testing.T) {
	f := newFake(t)
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	a := open(t, dead.URL+"/x, "+f.URL+"/x")
	term, _, _ := take(t, a)
	require.EqualValues(t, 1, term)
	require.Equal(t, f.URL, a.at[0])
}

// Another server than etcd is named, and not waited for.
func TestNoEtcd(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	defer s.Close()
	_, _, _, err := open(t, s.URL).Lead(context.Background())
	require.ErrorContains(t, err, "this is not an etcd of version 3.4 or later")
	require.Equal(t, errs.InvalidUsage, errs.CodeOf(err))
	for url, text := range map[string]string{
		"":                               "is not the URL of an etcd",
		"etcd:2379":                      "is not the URL of an etcd",
		"http://a:1/x,http://b:1/y":      "are two prefixes",
		"http://user:secret@a:1":         "not named in a URL",
		"http://user@a:1":                "has no password",
		"http://a@b:1,http://c@d:1":      "are two users",
		"http://a:1/x?y=1":               "is not the URL of an etcd",
		"http://a:1,ftp://b:1":           "is not the URL of an etcd",
		"http://a:" + "\x7f" + "/prefix": "invalid",
	} {
		_, err := New(url, Options{})
		require.Equal(t, errs.InvalidConfig, errs.CodeOf(err), url)
		require.ErrorContains(t, err, text)
		require.False(t, strings.Contains(err.Error(), "secret"))
	}
}
