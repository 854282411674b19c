package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const dashboard = "../../../../deploy/observability/objects/dashboard.json"

func TestEachPanelIsDrawn(t *testing.T) {
	scrapes := t.TempDir()
	for i := range 20 {
		second := 1_700_000_000 + 5*i
		text := fmt.Sprintf("gloo_router_passes_total{result=\"steady\"} %d\n", 10*i)
		file := filepath.Join(scrapes, fmt.Sprintf("%d.txt", second))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var svg bytes.Buffer
	if err := run(dashboard, scrapes, &svg); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(dashboard)
	if err != nil {
		t.Fatal(err)
	}
	var board struct{ Panels []panel }
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	for _, panel := range board.Panels {
		if !strings.Contains(svg.String(), ">"+panel.Title+"<") {
			t.Errorf("no panel %s", panel.Title)
		}
	}
	if !strings.Contains(svg.String(), ">steady<") {
		t.Error("no series of the scrapes")
	}
}

func TestTooFewScrapesAreAnError(t *testing.T) {
	err := run(dashboard, t.TempDir(), &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "too few scrapes") {
		t.Error(err)
	}
}
