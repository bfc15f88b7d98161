// Package tables turns the reports of a side-by-side run into figures per round, ratios and goals, and formats their
// tables in Markdown.
package tables
