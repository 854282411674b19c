// Package prometheus holds the alerts, the dashboard and the queries of deploy/observability against Prometheus itself.
package prometheus

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

const deploy = "../../../deploy/observability"

// promtool runs the tool of this module's version in dir.
func promtool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "-C", here, "tool", "-n", "promtool")
	// Without the service discoveries, which it has for every cloud.
	build.Env = append(os.Environ(), "GOFLAGS=-tags=remove_all_sd")
	path, err := build.Output()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(strings.TrimSpace(string(path)), args...)
	command.Dir = dir
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("promtool %v: %v\n%s", args, err, output)
	}
	return string(output)
}

// decode reads a manifest.
func decode(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// rules writes the groups of the PrometheusRule as a file of rules, as the operator does.
func rules(t *testing.T) (dir string, alerts []string) {
	t.Helper()
	var object struct {
		Spec yaml.Node
	}
	decode(t, filepath.Join(deploy, "objects/prometheus-rule.yaml"), &object)
	text, err := yaml.Marshal(&object.Spec)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		alerts = append(alerts, match[1])
	}
	return dir, alerts
}

func TestEachAlertFiresAndEnds(t *testing.T) {
	dir, alerts := rules(t)
	tests, err := os.ReadFile("testdata/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "alerts.yaml"), tests, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, dir, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
	promtool(t, dir, "test", "rules", "alerts.yaml")

	var file struct {
		Tests []struct {
			Alerts []struct {
				Alertname string
				Fires     []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	decode(t, "testdata/alerts.yaml", &file)
	if len(alerts) == 0 {
		t.Fatal("there are no alerts")
	}
	for _, alert := range alerts {
		var states []bool
		for _, test := range file.Tests {
			for _, check := range test.Alerts {
				if check.Alertname == alert && (len(check.Fires) > 0 || len(states) > 0) {
					states = append(states, len(check.Fires) > 0)
				}
			}
		}
		if len(states) < 2 || !states[0] || states[len(states)-1] {
			t.Errorf("%s is not shown to fire and to end", alert)
		}
	}
}

// metrics are those that the reference describes.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	page, err := os.ReadFile("../../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (counter|gauge|histogram) \\|")
	for _, match := range row.FindAllStringSubmatch(string(page), -1) {
		names[match[1]] = true
		if match[2] == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				names[match[1]+suffix] = true
			}
		}
	}
	return names
}

// checkQuery fails for a query that Prometheus refuses, or that asks for a metric which is not there.
func checkQuery(t *testing.T, where, query string, known map[string]bool) {
	t.Helper()
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v\n%s", where, err, query)
		return
	}
	for _, selectors := range parser.ExtractSelectors(expression) {
		for _, matcher := range selectors {
			if matcher.Name == "__name__" && !known[matcher.Value] {
				t.Errorf("%s: no metric is called %s", where, matcher.Value)
			}
		}
	}
}

func TestAlertsAndDashboardAskForMetricsThatAreThere(t *testing.T) {
	known := metrics(t)
	var object struct {
		Spec struct {
			Groups []struct {
				Rules []struct{ Alert, Expr string }
			}
		}
	}
	decode(t, filepath.Join(deploy, "objects/prometheus-rule.yaml"), &object)
	for _, group := range object.Spec.Groups {
		for _, rule := range group.Rules {
			checkQuery(t, rule.Alert, rule.Expr, known)
		}
	}

	text, err := os.ReadFile(filepath.Join(deploy, "objects/dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, panel := range dashboard.Panels {
		if ids[panel.ID] {
			t.Errorf("%s: another panel has the id %d", panel.Title, panel.ID)
		}
		ids[panel.ID] = true
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("%s shows nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			query := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
			checkQuery(t, panel.Title, query, known)
		}
	}
}
