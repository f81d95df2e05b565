module longma/guests

go 1.19
