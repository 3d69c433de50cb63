package etcd

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"
)

// fake is what etcd's gateway does, as far as an authority asks for it: one lock, so
// that everything is in one order.
type fake struct {
	*httptest.Server
	mu       sync.Mutex
	down     bool
	revision int64
	keys     map[string]*fakeKey
	leases   map[int64]*fakeLease
	next     int64
	lossy    bool          // a transaction is done, and its answer lost
	renewed  chan struct{} // has one element for each renewal of a lease that nobody has counted
	password string        // of the user "master"; "": it asks nobody
	token    int           // the one that counts
	behind   bool          // a member that is behind is asked, and it knows of nothing new
}

type fakeKey struct {
	value         []byte
	made, changed int64
	lease         int64
}

type fakeLease struct {
	ttl   time.Duration
	until time.Time
}

func newFake(t *testing.T) *fake {
	f := &fake{revision: 1, keys: map[string]*fakeKey{}, leases: map[int64]*fakeLease{}, next: 1000, renewed: make(chan struct{}, 1<<10)}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.Close)
	return f
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		http.Error(w, `{"error":"etcdserver: no leader","code":14}`, http.StatusServiceUnavailable)
		return
	}
	for id, l := range f.leases {
		if time.Now().After(l.until) {
			f.end(id)
		}
	}
	var in map[string]any
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if f.password != "" && r.URL.Path != "/v3/auth/authenticate" {
		switch token := r.Header.Get("Authorization"); token {
		case fmt.Sprint("token.", f.token):
		case "":
			http.Error(w, `{"error":"etcdserver: user name is empty","code":3}`, http.StatusBadRequest)
			return
		default:
			http.Error(w, `{"error":"etcdserver: invalid auth token","code":16}`, http.StatusUnauthorized)
			return
		}
	}
	switch r.URL.Path {
	case "/v3/auth/authenticate":
		switch {
		case f.password == "":
			http.Error(w, `{"error":"etcdserver: authentication is not enabled","code":9}`, http.StatusBadRequest)
		case in["name"] != "master" || in["password"] != f.password:
			http.Error(w, `{"error":"etcdserver: authentication failed, invalid user ID or password","code":3}`, http.StatusBadRequest)
		default:
			f.token++
			fmt.Fprintf(w, `{"header":{},"token":"token.%d"}`, f.token)
		}
	case "/v3/lease/grant":
		ttl, _ := strconv.Atoi(in["TTL"].(string))
		f.next++
		f.leases[f.next] = &fakeLease{time.Duration(ttl) * time.Second, time.Now().Add(time.Duration(ttl) * time.Second)}
		fmt.Fprintf(w, `{"header":{"revision":"%d"},"ID":"%d","TTL":"%d"}`, f.revision, f.next, ttl)
	case "/v3/lease/keepalive":
		id, _ := strconv.ParseInt(in["ID"].(string), 10, 64)
		if l := f.leases[id]; l != nil {
			l.until = time.Now().Add(l.ttl)
			f.renewed <- struct{}{}
			fmt.Fprintf(w, `{"result":{"header":{},"ID":"%d","TTL":"%d"}}`, id, int(l.ttl/time.Second))
		} else {
			fmt.Fprintf(w, `{"result":{"header":{},"ID":"%d"}}`, id)
		}
	case "/v3/lease/revoke":
		id, _ := strconv.ParseInt(in["ID"].(string), 10, 64)
		f.end(id)
		fmt.Fprint(w, `{"header":{}}`)
	case "/v3/kv/txn":
		f.txn(w, in)
	default:
		http.NotFound(w, r)
	}
}

func (f *fake) end(lease int64) {
	delete(f.leases, lease)
	for name, k := range f.keys {
		if k.lease == lease {
			f.revision++
			delete(f.keys, name)
		}
	}
}

func text(v any) string {
	b, err := base64.StdEncoding.DecodeString(v.(string))
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (f *fake) txn(w http.ResponseWriter, in map[string]any) {
	holds := true
	compares, _ := in["compare"].([]any)
	for _, c := range compares {
		c := c.(map[string]any)
		k := f.keys[text(c["key"])]
		if k == nil {
			k = &fakeKey{}
		}
		is, want := k.made, c["create_revision"]
		if c["target"] == "MOD" {
			is, want = k.changed, c["mod_revision"]
		}
		holds = holds && want == strconv.FormatInt(is, 10)
	}
	responses := []any{}
	ops, _ := in["success"].([]any)
	if f.behind && len(ops) == 0 { // it asks no other member
		holds = true
	}
	if holds {
		wrote := false
		for _, o := range ops {
			o := o.(map[string]any)
			if p, ok := o["request_put"].(map[string]any); ok {
				wrote = true
				lease := int64(0)
				if id, ok := p["lease"].(string); ok {
					lease, _ = strconv.ParseInt(id, 10, 64)
				}
				name := text(p["key"])
				k := f.keys[name]
				if k == nil {
					k = &fakeKey{made: f.revision + 1}
					f.keys[name] = k
				}
				value, _ := p["value"].(string)
				k.value, k.changed, k.lease = []byte(text(value)), f.revision+1, lease
				responses = append(responses, map[string]any{"response_put": map[string]any{}})
				continue
			}
			found := map[string]any{}
			if k := f.keys[text(o["request_range"].(map[string]any)["key"])]; k != nil {
				found["kvs"] = []any{map[string]any{"value": k.value, "mod_revision": strconv.FormatInt(k.changed, 10)}}
			}
			responses = append(responses, map[string]any{"response_range": found})
		}
		if wrote {
			f.revision++
		}
	}
	if f.lossy {
		f.lossy = false
		http.Error(w, "the answer is lost", http.StatusGatewayTimeout)
		return
	}
	out := map[string]any{"header": map[string]any{"revision": strconv.FormatInt(f.revision, 10)}, "responses": responses}
	if holds {
		out["succeeded"] = true // false is left out
	}
	_ = json.NewEncoder(w).Encode(out)
}
