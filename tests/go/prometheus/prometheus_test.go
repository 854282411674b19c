// Package prometheus checks the alerts, dashboards and queries of deploy/observability and of the generator's chart with
// Prometheus itself.
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

// product is one of the two programs that have alerts and a dashboard.
type product struct {
	name string
	// The rules: a PrometheusRule of the operator, or only its groups.
	rules     string
	dashboard string
	// The page that describes the metrics.
	page string
	// Tests of the alerts, for promtool.
	alerts string
}

var products = []product{
	{
		"plugin", "../../../deploy/observability/objects/prometheus-rule.yaml", "../../../deploy/observability/objects/dashboard.json",
		"../../../docs/observability.md", "testdata/alerts.yaml",
	},
	{
		"generator", "../../../deploy/appset-generator/chart/files/rules.yaml", "../../../deploy/appset-generator/chart/files/dashboard.json",
		"../../../docs/appset.md", "testdata/generator-alerts.yaml",
	},
}

// groups returns the groups of the rules.
func (p product) groups(t *testing.T) *yaml.Node {
	t.Helper()
	var object struct {
		Spec   yaml.Node
		Groups yaml.Node
	}
	decode(t, p.rules, &object)
	if object.Groups.IsZero() {
		var spec struct{ Groups yaml.Node }
		if err := object.Spec.Decode(&spec); err != nil {
			t.Fatal(err)
		}
		return &spec.Groups
	}
	return &object.Groups
}

// promtool runs the tool of this module's version in dir.
func promtool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "-C", here, "tool", "-n", "promtool")
	// Leaves out the service discoveries of all clouds. With the other flags, so that packages of this test are compiled once.
	build.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -tags=remove_all_sd")
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

// write writes the groups of the rules to a file, like the operator.
func (p product) write(t *testing.T) (dir string, alerts []string) {
	t.Helper()
	text, err := yaml.Marshal(map[string]*yaml.Node{"groups": p.groups(t)})
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
	for _, p := range products {
		t.Run(p.name, p.alertsFireAndEnd)
	}
}

func (p product) alertsFireAndEnd(t *testing.T) {
	dir, alerts := p.write(t)
	tests, err := os.ReadFile(p.alerts)
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
	decode(t, p.alerts, &file)
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
			t.Errorf("no test shows that %s fires and ends", alert)
		}
	}
}

// metrics returns the metrics in the table of the page.
func (p product) metrics(t *testing.T) map[string]bool {
	t.Helper()
	page, err := os.ReadFile(p.page)
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

// checkQuery fails for a query that is invalid, or that uses an unknown metric.
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
				t.Errorf("%s: there is no metric %s", where, matcher.Value)
			}
		}
	}
}

func TestAlertsAndDashboardsUseExistingMetrics(t *testing.T) {
	for _, p := range products {
		t.Run(p.name, p.usesExistingMetrics)
	}
}

func (p product) usesExistingMetrics(t *testing.T) {
	known := p.metrics(t)
	var groups []struct {
		Rules []struct{ Alert, Expr string }
	}
	if err := p.groups(t).Decode(&groups); err != nil {
		t.Fatal(err)
	}
	for _, group := range groups {
		for _, rule := range group.Rules {
			checkQuery(t, rule.Alert, rule.Expr, known)
		}
	}

	text, err := os.ReadFile(p.dashboard)
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
