package digest

// Replace is Register until back is called.
func Replace(name string, d Driver) (back func()) { return hashers.Replace(name, &entry{Driver: d}) }
