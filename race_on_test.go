//go:build race

package rocl_test

const raceEnabled = true
