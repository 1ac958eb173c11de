"""What a run is: model, cluster, layout, recipe (paper 2, Table 1). Imports `errors`, `units`."""
