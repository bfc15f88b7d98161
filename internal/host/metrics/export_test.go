package metrics

import dto "github.com/prometheus/client_model/go"

// Again begins the next edition of the family's page, and First is the first metric of this one.
func (f *Family) Again()             { f.page.begin() }
func (f *Family) First() *dto.Metric { return f.family.Metric[0] }
