package database

import "testing"

func TestMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("measures")
	}
	t.Logf("%+v", Measure(1000000))
}
