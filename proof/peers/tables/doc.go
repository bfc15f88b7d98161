// Package tables turns the reports of a side-by-side run into figures of rounds, ratios, goals and their tables in Markdown.
package tables
