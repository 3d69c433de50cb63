package main

import (
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
)

func TestRowsAreComplete(t *testing.T) {
	rows, err := parseRows(rowsFile)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, r := range rows {
		count[r.id[:2]]++
	}
	if want := map[string]int{"S0": 25, "S1": 37, "S2": 59, "S3": 21, "S4": 34}; !reflect.DeepEqual(count, want) {
		t.Fatalf("rows per document: %v, want %v", count, want)
	}
}

func TestScanAndRender(t *testing.T) {
	id := func(n string) string { return "S1-" + n }
	found, err := scan(fstest.MapFS{
		"core/x/x_test.go":          {Data: []byte("package x\n\n// Ring. " + id("29") + ", " + id("30") + "\nfunc TestRing() {\n\t// " + id("31") + "\n}\n\n// " + id("32") + "\n\nvar s = \"" + id("33") + "\"\n")},
		"core/x/x.go":               {Data: []byte("package x // " + id("34"))},
		"core/x/testdata/y_test.go": {Data: []byte("package y // " + id("35"))},
	})
	if err != nil {
		t.Fatal(err)
	}
	ring, file := mention{"core/x", "TestRing"}, mention{"core/x", "x_test.go"}
	want := map[string][]mention{id("29"): {ring}, id("30"): {ring}, id("31"): {ring}, id("32"): {file}}
	if !reflect.DeepEqual(found, want) {
		t.Fatalf("found %v, want %v", found, want)
	}
	text, open, err := render([]row{{id("29"), "a"}, {id("30"), "b"}, {id("31"), "c"}, {id("32"), "d"}, {id("33"), "e"}}, found)
	if err != nil || open != 1 {
		t.Fatal(open, err)
	}
	for _, line := range []string{"| S1-29 | a | `core/x` TestRing |", "| S1-33 | e | open |", "5 rows, 4 covered, 1 open."} {
		if !strings.Contains(string(text), line) {
			t.Errorf("missing %q in\n%s", line, text)
		}
	}
	if _, _, err := render([]row{{id("29"), "a"}}, found); err == nil {
		t.Fatal("an id without a row was accepted")
	}
}
