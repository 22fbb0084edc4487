//go:build race

package subsystest

const raceEnabled = true
