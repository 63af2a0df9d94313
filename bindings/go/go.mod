module tvmforest

go 1.19
