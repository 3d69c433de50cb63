// Package bounds is how options say what they take: the range of each number,
// and every rule that values break. A rule speaks of fields and amounts, so that
// a program with names of its own for them, such as a configuration file, can
// report it in these.
package bounds

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Field is the name of a field of options, such as "PoolSize".
type Field string

// Amount is a value of a field: a number, or a duration in nanoseconds.
type Amount struct {
	Of   Field
	N    int64
	Time bool
}

// String writes the amount as Go does.
func (a Amount) String() string {
	if a.Time {
		return time.Duration(a.N).String()
	}
	return strconv.FormatInt(a.N, 10)
}

// Bound is the range of one field. 0 is in every range: it takes the default.
type Bound struct {
	Field    Field
	Min, Max int64 // inclusive; nanoseconds if Time
	Time     bool
	Off      bool // a negative value means none, and is taken
	at       any  // *int, *int64 or *time.Duration
}

// Int is the bound of a number.
func Int(field Field, at *int, least, most int) Bound {
	return Bound{Field: field, Min: int64(least), Max: int64(most), at: at}
}

// Int64 is the bound of a number.
func Int64(field Field, at *int64, least, most int64) Bound {
	return Bound{Field: field, Min: least, Max: most, at: at}
}

// Time is the bound of a duration.
func Time(field Field, at *time.Duration, least, most time.Duration) Bound {
	return Bound{Field: field, Min: int64(least), Max: int64(most), Time: true, at: at}
}

// OrOff lets negative values through.
func (b Bound) OrOff() Bound {
	b.Off = true
	return b
}

// Get returns the value.
func (b Bound) Get() int64 {
	switch p := b.at.(type) {
	case *time.Duration:
		return int64(*p)
	case *int64:
		return *p
	case *int:
		return int64(*p)
	}
	panic("bounds: " + string(b.Field) + " has no value")
}

// Set changes the value.
func (b Bound) Set(v int64) {
	switch p := b.at.(type) {
	case *time.Duration:
		*p = time.Duration(v)
	case *int64:
		*p = v
	case *int:
		*p = int(v)
	}
}

// Amount makes v one of the bound's field.
func (b Bound) Amount(v int64) Amount { return Amount{b.Field, v, b.Time} }

// Broken is a rule that values break. Args are for Format; Fields and Amounts
// among them can be written in other words. The first Field is whose value it is.
type Broken struct {
	Format string
	Args   []any
}

// Field returns the field that the rule is about, "" if it names none.
func (b Broken) Field() Field {
	for _, a := range b.Args {
		if f, ok := a.(Field); ok {
			return f
		}
	}
	return ""
}

// In returns the text of the rule with names and amounts as the caller writes them.
func (b Broken) In(name func(Field) string, amount func(Amount) string) string {
	args := make([]any, len(b.Args))
	for i, a := range b.Args {
		switch a := a.(type) {
		case Field:
			args[i] = name(a)
		case Amount:
			args[i] = amount(a)
		default:
			args[i] = a
		}
	}
	return fmt.Sprintf(b.Format, args...)
}

// Error returns the text with the names of the fields.
func (b Broken) Error() string {
	return b.In(func(f Field) string { return string(f) }, Amount.String)
}

// Errors are all rules that options break.
type Errors []Broken

// Error joins the texts.
func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i, b := range e {
		texts[i] = b.Error()
	}
	return strings.Join(texts, "; ")
}

// Break adds a rule.
func (e *Errors) Break(format string, args ...any) { *e = append(*e, Broken{format, args}) }

// Check adds the bounds that their values break.
func (e *Errors) Check(list []Bound) {
	for _, b := range list {
		v := b.Get()
		if v == 0 || v >= b.Min && v <= b.Max || v < 0 && b.Off {
			continue
		}
		e.Break("%v %v is not from %v to %v", b.Field, b.Amount(v), b.Amount(b.Min), b.Amount(b.Max))
	}
}

// Err returns e, or nil if there is none.
func (e Errors) Err() error {
	if len(e) == 0 {
		return nil
	}
	return e
}
